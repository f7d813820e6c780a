"""What a person does with messages: look at them, send one, mend dead letters, purge, look after message sessions.

The commands and the web console share these functions. They use a namespace through `busbar.client.blocking`, over AMQP
alone. They neither print nor ask. Each takes a `BlockingFactory` first. It raises what the client raises, and
OperationRefused (a ValueError) if a value, or the entity, does not allow what was asked for.

    paths.py       the entity and the sub-queue that a path names
    browsing.py    messages without receiving them
    views.py       a message as plain values, its body as text
    composing.py   a message from what a person gives
    rewriting.py   a copy of a message with some fields changed
    taking.py      certain messages of a dead-letter queue under lock, the others released
    triage.py      dead letters by reason and source: resubmit, delete
    purging.py     all messages of some kinds
    sessions.py    message sessions: state, holder, backlog
    following.py   new messages as they come
"""
