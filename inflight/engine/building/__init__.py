"""Engine folders: built from a checkpoint, read, and sized before they are built."""
