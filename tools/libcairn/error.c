/* SPDX-License-Identifier: MIT
 * One line per thread: what failed, and what can be done about it. */
#include "priv.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char text[1024];

const char *cairn_error(void)
{
	return text;
}

const char *cairn_version(void)
{
	return CAIRN_VERSION;
}

int fail(int err, const char *fmt, ...)
{
	char line[sizeof(text)]; /* an argument may be the text itself */
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	memcpy(text, line, sizeof(text));
	return err;
}

static const char *advice(int err)
{
	switch (err) {
	case -ENOENT: return "; create the directory first";
	case -EACCES:
	case -EPERM: return "; check owner and mode of the directory and its parents";
	case -ENOSPC: return "; free some space there, or save fewer or smaller checkpoints";
	case -EDQUOT: return "; the owner's quota is used up";
	case -EROFS: return "; the filesystem is mounted read only";
	case -ENOTCONN:
		return "; the cairnfs there is dead: detach it with `umount -l` and start cairnfs "
		       "again, nothing staged is lost";
	case -EMFILE: return "; raise the limit on open files (ulimit -n)";
	case -ENOMEM: return "; the process or its cgroup is out of memory";
	case -EIO: return "; check the kernel's log, and `cairn status` if it is a cairnfs";
	default: return "";
	}
}

int fail_on(int err, const char *what, const char *path)
{
	char why[128];

	return fail(err, "%s %s: %s%s", what, path, strerror_r(-err, why, sizeof(why)),
		    advice(err));
}
