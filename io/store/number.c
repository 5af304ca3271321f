/* SPDX-License-Identifier: MIT
 *
 * The numbers of hosts: STORE/.cairn/.hosts/<number>, a symlink whose target is the host's name
 * (below .cairn no host's directory begins with a dot). symlink(2) makes name and content in one
 * step and fails if there is one, on all filesystems; after an answer that got lost, readlink(2)
 * tells whose it is. The search begins at a hash of the name, so that hosts that start together
 * rarely meet. A number is never given again: ids that were made with it are in the store.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "inside.h"
#include "io/scope.h"

#define NUMBERS_DIR ".hosts"

static unsigned first_of(const char *host)
{
	uint32_t h = 2166136261u; /* FNV-1a */

	for (; *host; host++)
		h = (h ^ (unsigned char)*host) * 16777619u;
	return (h ^ h >> 16) % IO_HOST_NUMBERS;
}

/* Whether this number is host's. 1, 0: another's; -ENOENT: nobody's. */
static int is_of(int dir, const char *number, const char *host)
{
	char name[80];
	ssize_t n = readlinkat(dir, number, name, sizeof(name) - 1);

	if (n < 0)
		return errno == EINVAL ? 0 : -errno; /* no symlink: not ours */
	name[n] = 0;
	return !strcmp(name, host);
}

/* Durable before an id is made with it. */
static int claim_one(int cairn, int dir, const char *number, const char *host)
{
	CLEANUP_CLOSE int above = openat(cairn, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (above < 0)
		return -errno;
	if (symlinkat(host, dir, number))
		return errno == EEXIST ? is_of(dir, number, host) : -errno;
	return fsync(dir) || fsync(above) ? -errno : 1;
}

static int open_numbers(int cairn, bool claim)
{
	if (!claim || !mkdirat(cairn, NUMBERS_DIR, 0700) || errno == EEXIST)
		return io_open_beneath(cairn, NUMBERS_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	return -errno;
}

int io_host_number(int cairn, const char *host, bool claim, unsigned *out)
{
	CLEANUP_CLOSE int dir = open_numbers(cairn, claim);
	unsigned first = first_of(host);

	*out = 0;
	if (dir < 0)
		return dir;
	for (unsigned i = 0; i < IO_HOST_NUMBERS; i++) {
		unsigned n = 1 + (first + i) % IO_HOST_NUMBERS;
		char number[16];

		snprintf(number, sizeof(number), "%u", n);
		int is = is_of(dir, number, host);
		if (is == -ENOENT && claim)
			is = claim_one(cairn, dir, number, host);
		if (is < 0)
			return is;
		if (is) {
			*out = n;
			return 0;
		}
	}
	return -EUSERS;
}
