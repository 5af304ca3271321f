/* SPDX-License-Identifier: MIT
 * The threads that answer (fs/session.c) with a socket in the kernel's place. In C, as fs_shim.h. */
#ifndef CAIRN_SESSION_SHIM_H
#define CAIRN_SESSION_SHIM_H

#ifdef __cplusplus
extern "C" {
#endif

struct fs;

/* Answers what comes from fd, the daemon's end of a SOCK_SEQPACKET pair; INIT is done. A GETATTR
 * does what takes too long and did not say so: it goes on when another thread has been made the
 * reader, and only then comes to a point where it may block. 0 or -errno. fd is ours then. */
int shim_serve(struct fs *fs, int fd);
/* A GETATTR from the kernel's end. 0 or -errno. */
int shim_ask(int fd);
/* Once the kernel's end is closed: waits for the threads, and closes the other. */
void shim_serve_end(struct fs *fs);

#ifdef __cplusplus
}
#endif
#endif
