"""Agents that live on an ADK server: it answers, the session stays here."""
