"""A party's node around a client: who asks, what is permitted, and what is remembered; `respond` is its story."""
