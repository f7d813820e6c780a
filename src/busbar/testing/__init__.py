"""A namespace for each test of a program that uses Service Bus (docs/testing.md).

    def test_orders(busbar_namespace):
        with ServiceBusClient.from_connection_string(busbar_namespace.connection_string) as client:
            ...

The fixtures are those of a pytest plugin, which comes with Busbar. Without pytest, `NamespaceServer` does the same.
"""

from busbar.testing.server import NamespaceServer, ServedNamespace, ServingFailed

__all__ = ["NamespaceServer", "ServedNamespace", "ServingFailed"]
