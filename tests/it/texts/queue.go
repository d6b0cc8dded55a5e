package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrClosed is returned once the queue accepts nothing more.
var ErrClosed = errors.New("queue: closed")

type Job struct {
	ID       string
	Payload  []byte
	Attempts int
	NotBefore time.Time
}

type Queue struct {
	mu      sync.Mutex
	pending []Job
	running map[string]Job
	closed  bool
	wake    chan struct{}
	now     func() time.Time
}

func New(now func() time.Time) *Queue {
	return &Queue{
		running: make(map[string]Job),
		wake:    make(chan struct{}, 1),
		now:     now,
	}
}

func (q *Queue) Push(job Job) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	q.pending = append(q.pending, job)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return nil
}

func (q *Queue) Pop(ctx context.Context) (Job, error) {
	for {
		job, wait, err := q.take()
		if err != nil {
			return Job{}, err
		}
		if wait == 0 {
			return job, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return Job{}, ctx.Err()
		case <-q.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (q *Queue) take() (Job, time.Duration, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed && len(q.pending) == 0 {
		return Job{}, 0, ErrClosed
	}
	best := time.Hour
	for i, job := range q.pending {
		wait := job.NotBefore.Sub(q.now())
		if wait <= 0 {
			q.pending = append(q.pending[:i], q.pending[i+1:]...)
			q.running[job.ID] = job
			return job, 0, nil
		}
		if wait < best {
			best = wait
		}
	}
	return Job{}, best, nil
}

func (q *Queue) Done(id string, failure error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	job, ok := q.running[id]
	if !ok {
		return fmt.Errorf("queue: no job %q is running", id)
	}
	delete(q.running, id)
	if failure == nil {
		return nil
	}
	job.Attempts++
	job.NotBefore = q.now().Add(time.Duration(1<<job.Attempts) * time.Second)
	q.pending = append(q.pending, job)
	return nil
}

func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	close(q.wake)
}
