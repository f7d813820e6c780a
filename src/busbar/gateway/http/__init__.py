"""HTTP: management (ATOM), the runtime operations, health and the WebSocket."""
