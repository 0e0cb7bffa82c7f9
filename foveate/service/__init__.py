"""The product floor: one asynchronous call from a conversation to a stream of text."""
