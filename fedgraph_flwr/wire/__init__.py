"""Wire formats: messages, the schema of replies, and state trees."""
