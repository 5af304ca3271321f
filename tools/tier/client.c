/* SPDX-License-Identifier: MIT
 *
 * The client, as the environment asks for: AWS_REGION, AWS_ENDPOINT_URL_S3, AWS_CA_BUNDLE; and
 * credentials by the library's default chain.
 */
#include "s3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_BYTES (256ull << 20) /* for parts; the least that the library takes */

/* of one read or write of a connection: with the library's 16 KiB calls and wake-ups took more time
 * than the bytes */
#define FRAGMENT_BYTES (256u << 10)

static const char *env(const char *a, const char *b, const char *otherwise)
{
	const char *v = getenv(a);

	if (!v || !*v)
		v = getenv(b);
	return v && *v ? v : otherwise;
}

static bool set_endpoint(struct s3 *s, const char *region, char *why, size_t room)
{
	const char *url = env("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", NULL);
	struct aws_byte_cursor c;
	int n;

	if (!url) {
		/* a dot in the name would not match the server's certificate */
		bool path_style = strchr(s->bucket, '.') != NULL;

		snprintf(s->host, sizeof(s->host), "%s%ss3.%s.amazonaws.com",
			 path_style ? "" : s->bucket, path_style ? "" : ".", region);
		snprintf(s->base, sizeof(s->base), "/%s%s", path_style ? s->bucket : "",
			 path_style ? "/" : "");
		return true;
	}
	c = aws_byte_cursor_from_c_str(url);
	if ((strncmp(url, "http://", 7) && strncmp(url, "https://", 8)) ||
	    aws_uri_init_parse(&s->endpoint, s->alloc, &c)) {
		snprintf(why, room, "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is not a URL");
		return false;
	}
	s->has_endpoint = true;
	c = *aws_uri_authority(&s->endpoint);
	n = snprintf(s->host, sizeof(s->host), "%.*s", (int)c.len, (const char *)c.ptr);
	snprintf(s->base, sizeof(s->base), "/%s/", s->bucket);
	return n < (int)sizeof(s->host);
}

static struct aws_tls_ctx *make_tls(struct s3 *s)
{
	const char *bundle = getenv("AWS_CA_BUNDLE");
	struct aws_tls_ctx_options o;
	struct aws_tls_ctx *tls = NULL;

	aws_tls_ctx_options_init_default_client(&o, s->alloc);
	if (!bundle || !*bundle ||
	    !aws_tls_ctx_options_override_default_trust_store_from_path(&o, NULL, bundle))
		tls = aws_tls_client_ctx_new(s->alloc, &o);
	aws_tls_ctx_options_clean_up(&o);
	return tls;
}

static bool make_bootstrap(struct s3 *s, struct aws_tls_ctx *tls)
{
	struct aws_event_loop_group *group = aws_event_loop_group_new_default(s->alloc, 4, NULL);
	struct aws_host_resolver_default_options resolve = {.el_group = group, .max_entries = 8};
	struct aws_host_resolver *resolver = aws_host_resolver_new_default(s->alloc, &resolve);
	struct aws_client_bootstrap_options o = {.event_loop_group = group,
						 .host_resolver = resolver};
	struct aws_credentials_provider_chain_default_options chain = {.tls_ctx = tls};

	s->bootstrap = aws_client_bootstrap_new(s->alloc, &o);
	chain.bootstrap = s->bootstrap;
	if (s->bootstrap)
		s->credentials = aws_credentials_provider_new_chain_default(s->alloc, &chain);
	return s->credentials != NULL;
}

static void no_use(struct aws_credentials *c, int err, void *ctx)
{
	(void)c;
	(void)err; /* the request that needs them fails again, and says so */
	(void)ctx;
}

bool s3_start(struct s3 *s, const char *bucket, char *why, size_t room)
{
	const char *region = env("AWS_REGION", "AWS_DEFAULT_REGION", "us-east-1");
	struct aws_tls_connection_options conn;
	struct aws_s3_client_config config = {
		.part_size = S3_PART_BYTES,
		.memory_limit_in_bytes = MEMORY_BYTES,
		.throughput_target_gbps = 10,
		.region = aws_byte_cursor_from_c_str(region),
	};
	struct aws_tls_ctx *tls;

	s->alloc = aws_default_allocator();
	s->bucket = bucket;
	aws_s3_library_init(s->alloc);
	g_aws_channel_max_fragment_size = FRAGMENT_BYTES;
	if (!set_endpoint(s, region, why, room))
		return false;
	tls = make_tls(s);
	if (!tls) {
		snprintf(why, room, "no TLS: %s (AWS_CA_BUNDLE?)", aws_error_str(aws_last_error()));
		return false;
	}
	if (make_bootstrap(s, tls)) {
		aws_s3_init_default_signing_config(&s->signing, config.region, s->credentials);
		aws_tls_connection_options_init_from_ctx(&conn, tls);
		config.client_bootstrap = s->bootstrap;
		config.signing_config = &s->signing;
		config.tls_connection_options = &conn;
		s->client = aws_s3_client_new(s->alloc, &config);
		aws_tls_connection_options_clean_up(&conn);
	}
	aws_tls_ctx_release(tls);
	/* asked for now, not by the first request: the provider keeps them */
	if (s->client)
		aws_credentials_provider_get_credentials(s->credentials, no_use, NULL);
	if (!s->client)
		snprintf(why, room, "no client: %s", aws_error_str(aws_last_error()));
	return s->client != NULL;
}
