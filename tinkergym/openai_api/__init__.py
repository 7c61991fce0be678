"""The HTTP shapes of the OpenAI API: requests, responses, stream events and errors. Knows no transport."""
