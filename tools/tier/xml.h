/* SPDX-License-Identifier: MIT
 *
 * What is needed of XML: the text of an element in an answer of S3.
 */
#ifndef CAIRN_TIER_XML_H
#define CAIRN_TIER_XML_H

#include <stdbool.h>
#include <stddef.h>

/* The text between two tags, from *at on, which is moved behind it. Entities in it are replaced, in
 * place. false: there is none. */
bool xml_text(char **at, const char *open, const char *close, char **text, size_t *len);

#endif
