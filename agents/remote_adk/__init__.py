"""Agents on an ADK server. The server answers; the session is stored here."""
