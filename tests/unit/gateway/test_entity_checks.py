"""What an entity allows, whatever the protocol."""

from __future__ import annotations

import pytest

from busbar.gateway.entity_checks import message_size
from busbar.model.api import EntityView
from busbar.model.entities import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    Tier,
    TopicDescription,
)
from busbar.model.limits import Limits, limits_of

MEGABYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("description", "limits", "size"),
    [
        (QueueDescription(), Limits(), 256 * 1024),
        (QueueDescription(max_message_size=1024), Limits(), 1024),
        (SubscriptionDescription(), Limits(), 256 * 1024),
        (QueueDescription(), limits_of(Tier.PREMIUM), MEGABYTE),
        (TopicDescription(max_message_size=100 * MEGABYTE), limits_of(Tier.PREMIUM), 100 * MEGABYTE),
        (QueueDescription(max_message_size=MEGABYTE), Limits(), 256 * 1024),  # made when more was allowed
    ],
)
def test_the_size_of_a_message(description: Description, limits: Limits, size: int) -> None:
    assert message_size(EntityView("e", description, ()), limits) == size
