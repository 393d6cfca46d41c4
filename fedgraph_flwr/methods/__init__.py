"""Shared parts of both sides of a method: its keys, its names on the wire, and its mathematics; no messages are sent here."""
