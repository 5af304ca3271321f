#!/bin/bash
# SPDX-License-Identifier: MIT
# Answers one HTTP request on stdin with the metrics of a mount: GET /metrics/NAME is what `cairn metrics
# DIR/NAME` prints: also of a mount that does not answer, cairnfs_up 0.
#	serve.sh [DIR]		default: /mnt
# cairnfs-metrics.socket starts it for each connection.
set -u
dir=${1:-/mnt}

answer()	# STATUS BODY
{
	LC_ALL=C
	printf 'HTTP/1.0 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\n%s\r\n\r\n%s\n' \
		"$1" $((${#2} + 1)) 'Connection: close' "$2"
	exit 0
}

# A client that says nothing, or too much, is not waited for.
read -r -t 10 -n 2000 method path _ || answer '400 Bad Request' 'no request'
for _ in {1..100}; do
	read -r -t 10 -n 8000 line || break
	line=${line%$'\r'}
	[ -n "$line" ] || break
done
path=${path%$'\r'} name=${path#/metrics/}
[ "$method" = GET ] || answer '405 Method Not Allowed' 'only GET'
case $path:$name in
/metrics/*:*[!A-Za-z0-9_.-]* | /metrics/*:.* | /metrics/*:) answer '404 Not Found' 'a mount is /metrics/NAME' ;;
/metrics/*) ;;
*) answer '404 Not Found' 'a mount is /metrics/NAME' ;;
esac
text=$(cairn metrics "$dir/$name" 2>/dev/null) || answer '503 Service Unavailable' "$dir/$name is not a mount of cairnfs"
answer '200 OK' "$text"
