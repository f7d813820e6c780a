"""The states of sessions and links, and what each input makes of each state.

A session     is                                            A link       is
BEGINNING     begun by us (client)                          ATTACHING    attached by the remote
BEGUN         begun by both                                 ATTACH_SENT  attached by us (client)
ENDING        ended by us                                   ATTACHED     attached by both
ENDED         ended by both, or with its connection         DETACHING    detached by us
                                                            DETACHED     detached by both, or with its session

The tables have a row for each state and a column for each input: the next state. If that is the state of the row, the input
has no effect. session.py and link.py write frames and events for the inputs that have one.
"""

from __future__ import annotations

from typing import Final

# Sessions
BEGINNING: Final = 0
BEGUN: Final = 1
ENDING: Final = 2
ENDED: Final = 3

REMOTE_BEGIN: Final = 0
OUR_END: Final = 1
REMOTE_END: Final = 2
CONNECTION_END: Final = 3

# Links. Their order counts: a link up to ATTACHED uses its handle, and one beyond it takes nothing any more.
ATTACHING: Final = 0
ATTACH_SENT: Final = 1
ATTACHED: Final = 2
DETACHING: Final = 3
DETACHED: Final = 4

ACCEPT: Final = 0
REFUSE: Final = 1
OUR_DETACH: Final = 2
REMOTE_ATTACH: Final = 3
REMOTE_DETACH: Final = 4
SESSION_END: Final = 5

# fmt: off
SESSION_TRANSITIONS: Final[tuple[tuple[int, ...], ...]] = (
    # REMOTE_BEGIN  OUR_END  REMOTE_END  CONNECTION_END
    (BEGUN,         ENDING,  ENDED,      ENDED),  # BEGINNING
    (BEGUN,         ENDING,  ENDED,      ENDED),  # BEGUN
    (ENDING,        ENDING,  ENDED,      ENDED),  # ENDING
    (ENDED,         ENDED,   ENDED,      ENDED),  # ENDED
)
LINK_TRANSITIONS: Final[tuple[tuple[int, ...], ...]] = (
    # ACCEPT      REFUSE       OUR_DETACH  REMOTE_ATTACH  REMOTE_DETACH  SESSION_END
    (ATTACHED,    DETACHING,   DETACHING,  ATTACHING,     DETACHED,      DETACHED),  # ATTACHING
    (ATTACH_SENT, ATTACH_SENT, DETACHING,  ATTACHED,      DETACHED,      DETACHED),  # ATTACH_SENT
    (ATTACHED,    ATTACHED,    DETACHING,  ATTACHED,      DETACHED,      DETACHED),  # ATTACHED
    (DETACHING,   DETACHING,   DETACHING,  DETACHING,     DETACHED,      DETACHED),  # DETACHING
    (DETACHED,    DETACHED,    DETACHED,   DETACHED,      DETACHED,      DETACHED),  # DETACHED
)
# fmt: on
