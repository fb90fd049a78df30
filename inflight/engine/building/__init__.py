"""Engine folders: built from a checkpoint, and sized before they are built."""
