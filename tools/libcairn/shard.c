/* SPDX-License-Identifier: MIT
 *
 * A shard's life.
 *
 *	create ──▶ open ──copy, data, sync──▶ open ──commit──▶ gone, the file exists
 *	             │                           └──abort──▶ gone
 *	             └──a copy fails──▶ failed ──commit (-EIO), abort──▶ gone
 */
#include "priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int shard_usable(const cairn_shard *shard)
{
	return shard ? stage_usable(shard->stage) : fail(-EINVAL, "no shard");
}

/* ---- create ---- */

static void shard_free(cairn_shard *shard)
{
	if (shard->dir >= 0)
		close(shard->dir);
	pthread_mutex_destroy(&shard->lock);
	free(shard->name);
	free(shard);
}

static int set_path(cairn_shard *shard, const char *path)
{
	struct stat st;
	char *name;
	int dir, err = file_split(path, &dir, &name);

	if (err)
		return err;
	if (shard->dir >= 0)
		close(shard->dir);
	free(shard->name);
	shard->dir = dir;
	shard->name = name;
	shard->dir_ino = fstat(dir, &st) ? 0 : st.st_ino;
	shard->same_fs = shard->dir_ino && st.st_dev == shard->stage->dev;
	return 0;
}

int cairn_shard_set_path(cairn_shard *shard, const char *path)
{
	int err = shard_usable(shard);

	if (!err && !path)
		err = fail(-EINVAL, "no path");
	return err ? err : set_path(shard, path);
}

static void count_shard(cairn_stage *stage, int open, bool own, bool committed)
{
	pthread_mutex_lock(&stage->lock);
	stage->shards_open += (unsigned)open;
	stage->stats.own += own;
	stage->stats.shards += committed;
	pthread_mutex_unlock(&stage->lock);
}

static cairn_shard *new_shard(cairn_stage *stage, uint64_t size, unsigned flags)
{
	cairn_shard *shard = calloc(1, sizeof(*shard));

	if (!shard)
		return NULL;
	shard->stage = stage;
	shard->size = size;
	shard->flags = flags;
	shard->dir = -1;
	shard->same_fs = true;
	lock_init(&shard->lock, RANK_SHARD);
	return shard;
}

static int check_create(cairn_stage *stage, uint64_t size, unsigned flags, cairn_shard **out)
{
	if (!out)
		return fail(-EINVAL, "cairn_shard_create: shard is NULL");
	*out = NULL;
	if (flags & ~CAIRN_EXCL)
		return fail(-EINVAL, "cairn_shard_create: unknown flags 0x%x", flags);
	if (size > INT64_MAX / 4)
		return fail(-EFBIG, "%llu bytes are more than a file can have",
			    (unsigned long long)size);
	return stage_usable(stage);
}

/* FNV-1a; 0 for none */
static uint64_t hash(const char *name)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (; name && *name; name++)
		h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
	return name ? h : 0;
}

int cairn_shard_create(cairn_stage *stage, const char *path, uint64_t size, unsigned flags,
		       cairn_shard **out)
{
	int err = check_create(stage, size, flags, out);
	bool staged;
	cairn_shard *shard;

	if (err)
		return err;
	shard = new_shard(stage, size, flags);
	if (!shard)
		return fail(-ENOMEM, "out of memory");
	if (path)
		err = set_path(shard, path);
	staged = shard->same_fs && size >= SMALL_MAX;
	if (!err)
		shard->buffer = buffer_get(stage, size, staged && stage->mount, shard->dir_ino,
					   hash(shard->name), &err);
	if (!shard->buffer) {
		shard_free(shard);
		return err;
	}
	count_shard(stage, 1, staged && stage->cairnfs && shard->buffer->kind == CAIRN_OWN, false);
	*out = shard;
	return 0;
}

void *cairn_shard_data(cairn_shard *shard)
{
	return shard_usable(shard) ? NULL : shard->buffer->base;
}

int cairn_shard_kind(cairn_shard *shard)
{
	int err = shard_usable(shard);

	return err ? err : (int)shard->buffer->kind;
}

/* ---- device ---- */

int cairn_shard_device(cairn_shard *shard, const char *device)
{
	int err = shard_usable(shard);

	if (err)
		return err;
	if (device && strlen(device) >= sizeof(shard->device))
		return fail(-EINVAL, "a device has at most %zu bytes", sizeof(shard->device) - 1);
	shard->device_set = true;
	snprintf(shard->device, sizeof(shard->device), "%s", device ? device : "");
	return 0;
}

void shard_device_text(const cairn_shard *shard, char *buf, size_t size)
{
	size_t n = 0;

	*buf = '\0';
	if (shard->device_set)
		snprintf(buf, size, "%s", shard->device);
	else if (shard->copied && !shard->devices)
		snprintf(buf, size, "cpu");
	if (shard->device_set || !shard->copied)
		return;
	for (int i = 0; i < CUDA_DL_DEVICES && n < size - 10; i++)
		if (shard->devices >> i & 1)
			n += (size_t)snprintf(buf + n, size - n, "%scuda:%d", n ? "," : "", i);
}

/* ---- copies ---- */

static int shard_failed(cairn_shard *shard, int err)
{
	if (!shard->failed) {
		shard->failed = -EIO;
		snprintf(shard->failure, sizeof(shard->failure), "%s", cuda_dl_error());
	}
	(void)err;
	return fail(-EIO,
		    "copy to a shard: %s; the shard cannot be committed: abort it, and if this "
		    "repeats restart the process, its CUDA context may be lost",
		    shard->failure);
}

static void count_copy(cairn_stage *stage, uint64_t n, bool device)
{
	pthread_mutex_lock(&stage->lock);
	*(device ? &stage->stats.bytes_device : &stage->stats.bytes_host) += n;
	pthread_mutex_unlock(&stage->lock);
}

static int copy_device(cairn_shard *shard, char *to, const void *src, uint64_t n, void *stream,
		       int device, bool pinned)
{
	cairn_stage *stage = shard->stage;
	char notice[NOTICE_MAX];
	int err;

	pthread_mutex_lock(&shard->lock);
	gpu_pin_quietly(stage, shard->buffer, device, notice);
	err = gpu_copy_from(stage, shard->buffer, to, src, n, stream, device, pinned);
	if (device >= 0 && device < CUDA_DL_DEVICES)
		shard->devices |= 1ull << device;
	shard->copied = true;
	if (err)
		err = shard_failed(shard, err);
	pthread_mutex_unlock(&shard->lock);
	if (notice[0])
		stage_notice(stage, NOTICE_PIN, "%s", notice);
	return err;
}

static int copy(cairn_shard *shard, char *to, const void *src, uint64_t n, void *stream)
{
	enum cuda_dl_memory what;
	int device, err = gpu_where(shard->stage, src, &what, &device);

	if (err) {
		pthread_mutex_lock(&shard->lock);
		err = shard_failed(shard, err);
		pthread_mutex_unlock(&shard->lock);
		return err;
	}
	count_copy(shard->stage, n, what == CUDA_DL_DEVICE || what == CUDA_DL_MANAGED);
	if (what != CUDA_DL_PLAIN)
		return copy_device(shard, to, src, n, stream, device, what != CUDA_DL_DEVICE);
	memcpy(to, src, n);
	pthread_mutex_lock(&shard->lock);
	shard->copied = true;
	pthread_mutex_unlock(&shard->lock);
	return 0;
}

int cairn_shard_copy(cairn_shard *shard, uint64_t off, const void *src, uint64_t n, void *stream)
{
	int err = shard_usable(shard);

	if (err)
		return err;
	if (off > shard->size || n > shard->size - off)
		return fail(-EINVAL, "copy of %llu bytes to offset %llu: the shard has %llu",
			    (unsigned long long)n, (unsigned long long)off,
			    (unsigned long long)shard->size);
	if (!n)
		return 0;
	if (!src)
		return fail(-EINVAL, "copy from NULL");
	return copy(shard, shard->buffer->base + off, src, n, stream);
}

int cairn_shard_sync(cairn_shard *shard)
{
	int err = shard_usable(shard);

	if (err)
		return err;
	pthread_mutex_lock(&shard->lock);
	err = gpu_wait(shard->stage, shard->buffer);
	if (err || shard->failed)
		err = shard_failed(shard, err);
	pthread_mutex_unlock(&shard->lock);
	return err;
}

/* ---- commit ---- */

/* Is it impossible to link a name to the buffer, but possible to write it? */
static bool must_write(int err)
{
	return err == -EXDEV || err == -EOPNOTSUPP || err == -ENOENT || err == -EBUSY ||
	       err == -EPERM || err == -EFBIG;
}

/* Gives the bytes their name. */
static int commit_file(cairn_shard *shard, uint64_t size, enum buffer_state *then)
{
	cairn_stage *stage = shard->stage;
	int err = -EXDEV;

	*then = BUFFER_IDLE;
	if (stage->stand_in)
		return 0;
	if (shard->buffer->kind == CAIRN_STAGED && shard->same_fs)
		err = file_link(shard, size);
	if (!err)
		*then = BUFFER_LENT;
	if (!err || !must_write(err))
		return err;
	err = file_write(shard, size);
	if (!err) {
		pthread_mutex_lock(&stage->lock);
		stage->stats.bytes_written += size;
		pthread_mutex_unlock(&stage->lock);
	}
	return err;
}

int cairn_shard_commit(cairn_shard *shard, uint64_t size)
{
	enum buffer_state then = BUFFER_IDLE;
	int err = shard_usable(shard), failed;

	if (err)
		return err;
	if (size > shard->size)
		return fail(-EINVAL, "commit of %llu bytes: the shard has %llu",
			    (unsigned long long)size, (unsigned long long)shard->size);
	if (!shard->name && !shard->stage->stand_in)
		return fail(-EINVAL, "the shard has no path: cairn_shard_set_path gives it one");
	failed = cairn_shard_sync(shard);
	if (!failed) {
		err = commit_file(shard, size, &then);
		if (err)
			fail_on(err, "commit", shard->name);
	}
	buffer_put(shard->stage, shard->buffer, then, failed);
	count_shard(shard->stage, -1, false, !failed && !err);
	shard_free(shard);
	return failed ? failed : err;
}

int cairn_shard_abort(cairn_shard *shard)
{
	int err, failed;

	if (!shard)
		return 0;
	err = shard_usable(shard);
	if (err)
		return err;
	failed = cairn_shard_sync(shard);
	buffer_put(shard->stage, shard->buffer, BUFFER_IDLE, failed);
	count_shard(shard->stage, -1, false, false);
	shard_free(shard);
	return 0;
}
