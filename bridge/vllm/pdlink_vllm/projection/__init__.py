"""DeepSeek-V4's attention input becomes the decoder's blocks on the engine's own GPU, by libpdproj. Without that
library the rows go to the sidecar, which projects them itself.
"""
