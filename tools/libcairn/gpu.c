/* SPDX-License-Identifier: MIT
 *
 * Which context a call runs in, what is registered, and the copies.
 *
 * Memory is registered for all contexts of the process, but the call needs a current one. A
 * trainer's thread has one. One of its helper threads may not: then the primary context that the
 * process has active is used. Creating one on device 0 would cost half a GiB of the wrong GPU's
 * memory, so if none is active the registration waits for the first copy, which names the device.
 */
#include "priv.h"

#include <errno.h>
#include <stdio.h>

void gpu_open(cairn_stage *stage, int device)
{
	struct gpu *g = &stage->gpu;

	lock_init(&g->lock, RANK_GPU);
	g->device = device;
	if (stage->flags & CAIRN_NO_CUDA)
		return;
	g->on = cuda_dl_open(&g->cu) == 0;
}

void gpu_close(cairn_stage *stage)
{
	struct gpu *g = &stage->gpu;

	if (g->on)
		cuda_dl_release(&g->cu, &g->primaries);
	pthread_mutex_destroy(&g->lock);
}

static int enter(struct gpu *g, int device, bool *pushed)
{
	int err;

	pthread_mutex_lock(&g->lock);
	err = cuda_dl_enter(&g->cu, &g->primaries, device, pushed);
	pthread_mutex_unlock(&g->lock);
	return err;
}

/* A context of any device; the stage's own if the thread has none. */
static int enter_any(struct gpu *g, bool *pushed)
{
	cudl_context ctx = NULL;

	if (g->device >= 0 && (g->cu.ctx_current(&ctx) != CUDL_OK || !ctx))
		return enter(g, g->device, pushed);
	return enter(g, -1, pushed);
}

static int enter_for(struct gpu *g, int device, bool *pushed)
{
	return device < 0 ? enter_any(g, pushed) : enter(g, device, pushed);
}

/* ---- registration ---- */

static void count_pin(cairn_stage *stage, const struct stage_buffer *b, int err)
{
	pthread_mutex_lock(&stage->lock);
	stage->stats.registrations += b->pin.calls;
	if (b->pin.pinned)
		stage->stats.registered_bytes += b->bytes;
	if (err)
		stage->stats.unregistered++;
	pthread_mutex_unlock(&stage->lock);
}

void gpu_pin_quietly(cairn_stage *stage, struct stage_buffer *b, int device, char text[NOTICE_MAX])
{
	struct gpu *g = &stage->gpu;
	bool pushed;
	int err;

	text[0] = 0;
	if (!g->on || b->pin_tried)
		return;
	err = enter_for(g, device, &pushed);
	if (err == -ENODEV && device < 0)
		return;
	b->pin_tried = true;
	if (!err) {
		err = cuda_dl_register(&g->cu, b->base, b->bytes, &b->pin);
		cuda_dl_leave(&g->cu, pushed);
	}
	count_pin(stage, b, err);
	if (err)
		snprintf(text, NOTICE_MAX,
			 "%llu MiB could not be registered with CUDA, so copies are slower and "
			 "wait: %s; check the memory limit of the cgroup and ulimit -l",
			 (unsigned long long)(b->bytes >> 20), cuda_dl_error());
}

void gpu_pin(cairn_stage *stage, struct stage_buffer *b, int device)
{
	char text[NOTICE_MAX];

	gpu_pin_quietly(stage, b, device, text);
	if (text[0])
		stage_notice(stage, NOTICE_PIN, "%s", text);
}

void gpu_unpin(cairn_stage *stage, struct stage_buffer *b)
{
	struct gpu *g = &stage->gpu;
	bool pushed, entered;

	if (!g->on)
		return;
	entered = !enter_any(g, &pushed);
	if (b->pin.pinned) {
		pthread_mutex_lock(&stage->lock);
		stage->stats.registered_bytes -= b->bytes;
		pthread_mutex_unlock(&stage->lock);
	}
	if (!entered) { /* the contexts are gone, and everything in them */
		free(b->marks.v);
		return;
	}
	cuda_dl_marks_free(&g->cu, &b->marks);
	cuda_dl_unregister(&g->cu, &b->pin);
	cuda_dl_leave(&g->cu, pushed);
}

/* ---- copies ---- */

int gpu_where(cairn_stage *stage, const void *p, enum cuda_dl_memory *what, int *device)
{
	struct gpu *g = &stage->gpu;
	bool pushed;
	int err;

	*what = CUDA_DL_PLAIN;
	*device = -1;
	if (!g->on)
		return 0;
	err = cuda_dl_where(&g->cu, p, what, device);
	if (err && cuda_dl_lacks_context()) {
		err = enter_any(g, &pushed);
		if (err == -ENODEV) /* no context, so no device memory */
			return 0;
		if (!err) {
			err = cuda_dl_where(&g->cu, p, what, device);
			cuda_dl_leave(&g->cu, pushed);
		}
	}
	return err;
}

/* Queued copies must be waited for in any case. */
static int note(struct gpu *g, struct stage_buffer *b, void *stream)
{
	int err = cuda_dl_mark(&g->cu, &b->marks, stream);

	if (err)
		g->cu.stream_sync(stream);
	return err;
}

int gpu_copy_from(cairn_stage *stage, struct stage_buffer *b, void *host, const void *src, size_t n,
		  void *stream, int device, bool in_order)
{
	struct gpu *g = &stage->gpu;
	bool pushed;
	int err = enter_for(g, device, &pushed), e;

	if (err)
		return err;
	if (in_order)
		err = cuda_dl_copy_in_order(&g->cu, &b->pin, host, src, n, stream);
	else
		err = cuda_dl_copy_from(&g->cu, &b->pin, host, src, n, stream);
	/* also after an error: a part of it may be in progress */
	e = note(g, b, stream);
	cuda_dl_leave(&g->cu, pushed);
	return err ? err : e;
}

int gpu_copy_to(cairn_stage *stage, struct stage_buffer *b, void *dst, size_t n, void *stream,
		int device)
{
	struct gpu *g = &stage->gpu;
	bool pushed;
	int err = enter_for(g, device, &pushed), e;

	if (err)
		return err;
	err = cuda_dl_copy_to(&g->cu, &b->pin, dst, b->base, n, stream);
	e = note(g, b, stream);
	cuda_dl_leave(&g->cu, pushed);
	return err ? err : e;
}

int gpu_wait(cairn_stage *stage, struct stage_buffer *b)
{
	return stage->gpu.on ? cuda_dl_marks_wait(&stage->gpu.cu, &b->marks) : 0;
}

cudl_context gpu_current(cairn_stage *stage)
{
	cudl_context ctx = NULL;

	if (!stage->gpu.on || stage->gpu.cu.ctx_current(&ctx) != CUDL_OK)
		return NULL;
	return ctx;
}

void gpu_push(cairn_stage *stage, cudl_context ctx)
{
	if (ctx)
		stage->gpu.cu.ctx_push(ctx);
}

void gpu_pop(cairn_stage *stage, cudl_context ctx)
{
	cuda_dl_leave(&stage->gpu.cu, ctx);
}
