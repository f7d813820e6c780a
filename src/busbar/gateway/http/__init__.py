"""HTTP: management (ATOM), the runtime operations, health and the WebSocket, on connections that were sniffed."""
