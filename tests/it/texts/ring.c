#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RING_MIN 16u

struct ring {
	uint8_t *bytes;
	size_t   mask;
	size_t   head;
	size_t   tail;
};

static size_t round_up(size_t n)
{
	size_t size = RING_MIN;
	while (size < n)
		size <<= 1;
	return size;
}

int ring_init(struct ring *r, size_t capacity)
{
	size_t size = round_up(capacity);
	r->bytes = malloc(size);
	if (r->bytes == NULL)
		return -1;
	r->mask = size - 1;
	r->head = 0;
	r->tail = 0;
	return 0;
}

void ring_free(struct ring *r)
{
	free(r->bytes);
	r->bytes = NULL;
	r->mask = 0;
	r->head = 0;
	r->tail = 0;
}

size_t ring_used(const struct ring *r)
{
	return r->head - r->tail;
}

size_t ring_room(const struct ring *r)
{
	return r->mask + 1 - ring_used(r);
}

size_t ring_write(struct ring *r, const uint8_t *from, size_t n)
{
	size_t room = ring_room(r);
	if (n > room)
		n = room;
	for (size_t i = 0; i < n; i++)
		r->bytes[(r->head + i) & r->mask] = from[i];
	r->head += n;
	return n;
}

size_t ring_read(struct ring *r, uint8_t *to, size_t n)
{
	size_t used = ring_used(r);
	if (n > used)
		n = used;
	for (size_t i = 0; i < n; i++)
		to[i] = r->bytes[(r->tail + i) & r->mask];
	r->tail += n;
	return n;
}

bool ring_peek(const struct ring *r, size_t at, uint8_t *byte)
{
	if (at >= ring_used(r))
		return false;
	*byte = r->bytes[(r->tail + at) & r->mask];
	return true;
}

#ifdef RING_TEST
int main(void)
{
	struct ring r;
	uint8_t out[8];
	assert(ring_init(&r, 20) == 0);
	assert(ring_room(&r) == 32);
	assert(ring_write(&r, (const uint8_t *)"hello", 5) == 5);
	assert(ring_used(&r) == 5);
	assert(ring_read(&r, out, 8) == 5);
	assert(memcmp(out, "hello", 5) == 0);
	assert(ring_used(&r) == 0);
	ring_free(&r);
	return 0;
}
#endif
