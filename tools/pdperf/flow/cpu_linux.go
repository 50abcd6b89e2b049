package flow

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// ReadCPU reads a file for each thread of the process. Errors: ErrUnknown where the
// kernel was built without scheduler statistics.
func ReadCPU() (CPU, error) {
	const dir = "/proc/self/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return CPU{}, fmt.Errorf("read processor time: %w: %w", ErrUnknown, err)
	}
	var sum CPU
	read := 0
	for _, t := range tasks {
		text, err := os.ReadFile(dir + "/" + t.Name() + "/schedstat")
		if err != nil {
			continue // it has ended
		}
		words := bytes.Fields(text)
		if len(words) < 2 {
			continue
		}
		run, err1 := strconv.ParseInt(string(words[0]), 10, 64)
		ready, err2 := strconv.ParseInt(string(words[1]), 10, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		sum.Run += time.Duration(run)
		sum.Ready += time.Duration(ready)
		read++
	}
	if read == 0 {
		return CPU{}, fmt.Errorf("read processor time: %w: no thread has /proc/self/task/*/schedstat", ErrUnknown)
	}
	return sum, nil
}
