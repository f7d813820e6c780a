"""AMQP messages: what the broker reads of them, the format in which it stores them, and what it writes on delivery.

On arrival (parsing.py) the broker reads the few fields it acts on and keeps the sender's bytes:

- header: durable, priority and ttl are read; the section is written again for every delivery.
- delivery-annotations: kept behind the message, where the Python SDK writes them; receivers get them in front.
- message-annotations: kept as they are, without the keys that only the broker sets. (Clients that send a received message
  on carry them along.) The scheduled time (x-opt-scheduled-enqueue-time) and the partition keys are read, and kept in
  their types.
- properties: kept byte for byte; message-id and group-id are read. If a message has no message-id (absent, null or empty),
  it gets a new one, because JavaScript receivers cannot settle a message without an id.
- all later sections: kept byte for byte. Application properties are counted, so that later steps cannot fail.

Time to live: header.ttl. If that is absent or 0xFFFFFFFF, absolute-expiry-time minus creation-time if both are present
(durations above 49.7 days). Zero, and a difference that is not positive, mean "not set".

The content is opaque to every other room (integers big-endian):

    0  1 byte   version in the high four bits (1); bit 0: durable; bit 1: the priority is set;
                bit 2: the kept annotations begin with the enqueued sequence number (40 bytes, two values);
                bit 3: the last section is the sender's delivery annotations
    1  1 byte   priority
    2  2 bytes  number of values in the kept message annotations (two for each pair)
    4  4 bytes  their length in bytes
    8           the kept annotations, without a map around them
                properties to footer, as they are sent, all with smallulong descriptors
                the sender's delivery annotations, if there are any but the broker's own

Bit 2 is never set on arrival. A topic sets it on the copies for its subscriptions (content.py). They keep the number that
the topic assigned, and deliveries leave out the zero that they write otherwise.

On delivery (delivery.py) a header and the broker's annotations go in front of bytes 8 and following. Properties stay as
sent: absolute-expiry-time is not set, because clients derive expiry from enqueued-time and ttl. If a ttl does not fit into a
uint, it is left out of the header; the sender has put it into the properties.

The lock token of a delivery is its tag: lock_token.py.
"""
