"""What travels: messages, the schema of replies, and state trees."""
