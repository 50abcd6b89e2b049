// Package cuda runs package kernels' DeepSeek-V4 projection on an NVIDIA GPU, by
// libpdproj, whose sources and C interface (pdproj.h) lie beside it. The library is
// loaded at run time, so a program with this package starts where there is none.
//
// [Open] picks the GPU or the reference of package kernels, says which and why, and
// gives the same results either way, but for the order of float32 sums. Build tags
// nocuda and nordma, and systems other than Linux on amd64 and arm64, leave the loader
// out: such a program has the reference only. nordma leaves out every loader of
// libraries, that of package rdma too, and so a program without cgo is linked
// statically.
package cuda
