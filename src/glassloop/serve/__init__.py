"""The server: requests of clients, one queue, batches by number of tokens, and the answers of text-embeddings-inference."""
