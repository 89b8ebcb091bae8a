"""Land an object-storage buffer in a lakehouse, exactly once. Importing this starts nothing."""

__version__ = "0.1.0"
