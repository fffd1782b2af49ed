"""An ADK app for tests; `adk api_server` finds it by the name of this folder."""
