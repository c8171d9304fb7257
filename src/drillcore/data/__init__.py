"""Data: images from IDX files, the images that ship with the package, and batches as a function of the step."""
