//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"pdlink/transport"
)

// library is libibverbs or librdma, opened: addresses of what it exports. Posting,
// polling and arming are not among that: they are called through the table of
// functions in a device's context. It is never closed, since providers have threads
// and handlers that cannot be taken out.
type library struct {
	path     string
	location uintptr // of the calling thread's errno

	getDeviceList, freeDeviceList, getDeviceName, openDevice, closeDevice uintptr
	queryPort, queryGID, allocPD, deallocPD, regMR, deregMR               uintptr
	createCQ, destroyCQ, createQP, modifyQP, destroyQP                    uintptr

	// 0 where the library lacks them.
	queryDevice, createChannel, destroyChannel, getEvent, ackCQ, getAsync, ackAsync uintptr
	queryGIDTable, queryGIDEntry                                                    uintptr
}

// symbols names what a library must have, and what it may have.
func (l *library) symbols() (required, optional map[string]*uintptr) {
	required = map[string]*uintptr{
		"ibv_get_device_list": &l.getDeviceList, "ibv_free_device_list": &l.freeDeviceList,
		"ibv_get_device_name": &l.getDeviceName, "ibv_open_device": &l.openDevice, "ibv_close_device": &l.closeDevice,
		"ibv_query_port": &l.queryPort, "ibv_query_gid": &l.queryGID,
		"ibv_alloc_pd": &l.allocPD, "ibv_dealloc_pd": &l.deallocPD, "ibv_reg_mr": &l.regMR, "ibv_dereg_mr": &l.deregMR,
		"ibv_create_cq": &l.createCQ, "ibv_destroy_cq": &l.destroyCQ,
		"ibv_create_qp": &l.createQP, "ibv_modify_qp": &l.modifyQP, "ibv_destroy_qp": &l.destroyQP,
	}
	optional = map[string]*uintptr{ // what a link can do without, and what older libraries or macOS may not have
		"ibv_query_device": &l.queryDevice, "ibv_create_comp_channel": &l.createChannel, "ibv_destroy_comp_channel": &l.destroyChannel,
		"ibv_get_cq_event": &l.getEvent, "ibv_ack_cq_events": &l.ackCQ,
		"ibv_get_async_event": &l.getAsync, "ibv_ack_async_event": &l.ackAsync,
		"_ibv_query_gid_table": &l.queryGIDTable, "_ibv_query_gid_ex": &l.queryGIDEntry,
	}
	return required, optional
}

// Load opens the host's library of verbs. It does not look for devices. Errors:
// transport.ErrUnavailable with the reason.
func Load(o Options) (Provider, error) {
	l, err := load(o.Library)
	if err != nil {
		return nil, err
	}
	return &provider{lib: l}, nil
}

func load(path string) (*library, error) {
	names := libraryNames()
	if path != "" {
		names = []string{path}
	}
	var handle uintptr
	var failures []error
	l := &library{}
	for _, name := range names {
		runtime.LockOSThread() // the reason of a failure is the thread's
		h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		runtime.UnlockOSThread()
		if err == nil {
			handle, l.path = h, name
			break
		}
		failures = append(failures, err)
	}
	if handle == 0 {
		return nil, fmt.Errorf("%w: load the library of verbs: %w (%s)", transport.ErrUnavailable, errors.Join(failures...), libraryCure)
	}
	// A library that exports this has other layouts: calls by ours would write where
	// they must not.
	if at, err := purego.Dlsym(handle, "ibv_post_send"); err == nil && at != 0 {
		return nil, fmt.Errorf("%w: %s is no libibverbs: it exports ibv_post_send, so its structs are others", transport.ErrUnavailable, l.path)
	}
	if err := l.resolve(handle); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *library) resolve(handle uintptr) error {
	required, optional := l.symbols()
	for name, at := range required {
		var err error
		if *at, err = purego.Dlsym(handle, name); err != nil {
			return fmt.Errorf("%w: %s lacks %s: %w", transport.ErrUnavailable, l.path, name, err)
		}
	}
	for name, at := range optional {
		if found, err := purego.Dlsym(handle, name); err == nil {
			*at = found
		}
	}
	var err error
	if l.location, err = purego.Dlsym(purego.RTLD_DEFAULT, errnoLocation); err != nil {
		return fmt.Errorf("%w: the C library lacks %s: %w", transport.ErrUnavailable, errnoLocation, err)
	}
	return nil
}

// at turns the address of C memory into a pointer.
func at[T any](addr uintptr) *T { return *(**T)(unsafe.Pointer(&addr)) }

// addrOf is the address of memory outside the Go heap.
func addrOf[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// text copies a C string.
func text(addr uintptr) string {
	const longest = 256 // names of devices have at most 64
	for n := range uintptr(longest) {
		if *at[byte](addr + n) == 0 {
			return string(unsafe.Slice(at[byte](addr), n))
		}
	}
	return ""
}

// pointer calls a function that returns a pointer, or NULL and errno, which belongs
// to the thread.
func (l *library) pointer(doing string, fn uintptr, args ...uintptr) (uintptr, error) {
	if fn == 0 {
		return 0, fmt.Errorf("%w: %s: %s has no such function", ErrUnsupported, doing, l.path)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, _, _ := purego.SyscallN(fn, args...)
	if r == 0 {
		return 0, failure(doing, l.errno())
	}
	return r, nil
}

// code calls a function that returns 0, an errno value, or -1 and errno.
func (l *library) code(doing string, fn uintptr, args ...uintptr) error {
	if fn == 0 {
		return fmt.Errorf("%w: %s: %s has no such function", ErrUnsupported, doing, l.path)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, _, _ := purego.SyscallN(fn, args...)
	return l.result(doing, r)
}

func (l *library) result(doing string, r uintptr) error {
	switch v := int32(r); v { // an int: the upper half of the register means nothing
	case 0:
		return nil
	case -1:
		return failure(doing, l.errno())
	default:
		return failure(doing, number(v))
	}
}

// errno is the calling thread's, which must not change between the failed call and
// this one.
func (l *library) errno() syscall.Errno {
	where, _, _ := purego.SyscallN(l.location)
	return syscall.Errno(*at[int32](where))
}

// number is the errno value that a call returned, by some providers negated.
func number(v int32) syscall.Errno { return syscall.Errno(max(v, -v)) }

// failure turns errno of a call into an error with the sentinel that it has, if any.
func failure(doing string, errno syscall.Errno) error {
	if errno == syscall.ENOTSUP { // on some systems another name of the next
		errno = syscall.EOPNOTSUPP
	}
	switch errno {
	case syscall.EBUSY:
		return fmt.Errorf("%w: %s: %w", ErrBusy, doing, errno)
	case syscall.EOPNOTSUPP, syscall.ENOSYS:
		return fmt.Errorf("%w: %s: %w", ErrUnsupported, doing, errno)
	case 0:
		return fmt.Errorf("verbs: %s failed without a reason", doing)
	}
	return fmt.Errorf("verbs: %s: %w", doing, errno)
}
