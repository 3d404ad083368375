"""The processing of a published message: hooks, retained, delayed and numbered messages."""
