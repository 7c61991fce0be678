"""The games of TextArena as text environments."""
