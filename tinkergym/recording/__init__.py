"""Programs that speak the OpenAI API as episodes: their calls recorded, token for token."""
