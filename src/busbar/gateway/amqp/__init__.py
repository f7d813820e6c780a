"""AMQP connections of clients: links, requests, authorization."""
