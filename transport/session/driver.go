package session

// Driver is what a link supplies: it moves control messages and frames and knows
// nothing of transfers. Each direction of each channel has one caller at a time;
// different channels and directions are used concurrently.
type Driver interface {
	// WriteControl sends one encoded control message, at most
	// wire.MaxControl bytes. The bytes may be reused when it returns. What was
	// written before Close reaches a peer that goes on reading.
	WriteControl(msg []byte) error

	// ReadControl returns the next control message, valid until the next
	// call. It must not allocate more than has arrived. io.EOF means that the
	// peer ended its direction in order.
	ReadControl() ([]byte, error)

	// Lanes is the number of data lanes; it never changes.
	Lanes() int

	// WriteFrame sends an encoded header and the payload on a lane, and
	// returns when the link no longer needs the bytes, also when it fails.
	WriteFrame(lane int, header, payload []byte) error

	// ReadFrame receives the next frame of a lane: the complete header into
	// header (HeaderRoom bytes), then place returns the memory for the
	// payload and the driver fills it; place is called at most once. Before
	// that the driver has had the header's fixed part judged by
	// wire.FrameLength with the agreed limit, and nobody does it again: header
	// is as long as it said. It returns the encoded header's
	// length. io.EOF means that the peer ended the lane in order.
	ReadFrame(lane int, header []byte, place Placer) (int, error)

	// Close unblocks every call and frees the link's resources. It is called
	// once.
	Close() error
}

// Queuer is what a Driver may be too, when it can have several frames of a lane on
// their way: a session then uses QueueFrame in place of WriteFrame.
type Queuer interface {
	// QueueFrame is WriteFrame without the wait: done is called once, from any
	// goroutine and maybe before QueueFrame returns, when the link no longer needs the
	// bytes. It waits while the lane has as many frames on their way as it takes. With
	// an error done is not called. What fails later is the error of a later call; Close
	// calls done for every frame that was queued before it returns.
	QueueFrame(lane int, header, payload []byte, done func()) error
}

// Packer is what a Driver may be too, when payloads may be smaller on their way than in
// memory. What its methods tell is of the last frame that its WriteFrame, or ReadFrame,
// moved. An Interceptor does not hide it, so they may be called while the lane goes on:
// one that swallows frames, or sends its own, makes the figures those of other frames.
type Packer interface {
	// LastSent is how many bytes of a lane's frame did not have to travel, and the
	// name of the codec; 0 and none for a frame that went as it is.
	LastSent(lane int) (saved int, codec string)

	// LastReceived is the same of the other direction.
	LastReceived(lane int) (saved int, codec string)
}

// Placer returns the memory for the payload of a frame whose encoded header is
// given, as many bytes as the header says. Its error ends the lane; ReadFrame
// returns it wrapped.
type Placer func(header []byte) (payload []byte, err error)

// Interceptor stands between a session and its driver: fault injection and
// measuring wrap here, for every link alike.
type Interceptor func(Driver) Driver
