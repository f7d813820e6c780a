"""Messages on their way in and out: what the broker reads, what it keeps, and what it writes in front.

On arrival (parsing.py) the broker reads the few fields it acts on and keeps the sender's bytes:

- header: durable, priority and ttl are read; the section is written anew for every delivery.
- delivery-annotations: kept behind the message, where the Python SDK writes them; receivers get them in front.
- message-annotations: kept as they are, without the keys that only the broker sets (clients that send a received
  message on carry them along). x-opt-scheduled-enqueue-time and the partition keys are read, and kept in their types.
- properties: kept byte for byte; message-id and group-id are read. A message without a message-id (absent, null or
  empty) gets the fresh one: JavaScript receivers cannot settle a message that has none.
- everything behind: kept byte for byte. Application properties are counted, so that nothing can go wrong later.

Time to live: header.ttl, or, when that is absent or 0xFFFFFFFF, absolute-expiry-time minus creation-time if both
are there (durations above 49.7 days). Zero, and a difference that is not positive, mean "not set".

Content, opaque to every other room (integers big-endian):

    0  1 byte   version in the high four bits (1); bit 0: durable; bit 1: the priority is set;
                bit 2: the kept annotations begin with the enqueued sequence number (40 bytes, two values);
                bit 3: the last section is the sender's delivery annotations
    1  1 byte   priority
    2  2 bytes  number of values in the kept message annotations (two for each pair)
    4  4 bytes  their length in bytes
    8           the kept annotations, without a map around them
                properties to footer, as they travel, all with smallulong descriptors
                the sender's delivery annotations, if there are any but the broker's own

Bit 2 is never set on arrival. A topic sets it on the copies that it gives its subscriptions (content.py): they keep the
number that the topic gave, and deliveries leave out the zero that they write otherwise.

On delivery (delivery.py) a header and the broker's annotations go in front of bytes 8 and following. Properties
stay as sent: absolute-expiry-time is not set, because clients derive expiry from enqueued-time and ttl. A ttl that
does not fit into a uint is left out of the header; its sender said it in the properties.

The lock token of a delivery is its tag: lock_token.py.
"""
