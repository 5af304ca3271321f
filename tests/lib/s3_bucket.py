#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/lib/s3_bucket.py fresh|drop|probe BUCKET - of the server and with the keys that AWS_* in the environment name (boto3).

	fresh   there is an empty bucket of that name, in which anybody may read and write: for reads with plain HTTP
	drop    there is none
	probe   what the server says to requests that it should refuse, a line each
"""
import json
import os
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

ALL = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": ["*"]}, "Action": ["s3:*"],
                                               "Resource": ["arn:aws:s3:::{0}", "arn:aws:s3:::{0}/*"]}]}


def client():
    # The checksums that newer releases send by themselves are trailers, which older servers do not know.
    return boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"], config=Config(
        s3={"addressing_style": "path"}, request_checksum_calculation="when_required",
        response_checksum_validation="when_required"))


def drop(s3, name):
    try:
        for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=name):
            for upload in page.get("Uploads", ()):
                s3.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
            for found in page.get("Contents", ()):
                s3.delete_object(Bucket=name, Key=found["Key"])
        s3.delete_bucket(Bucket=name)
    except ClientError as err:
        if err.response["Error"]["Code"] != "NoSuchBucket":
            raise


def fresh(s3, name):
    drop(s3, name)
    s3.create_bucket(Bucket=name)
    s3.put_bucket_policy(Bucket=name, Policy=json.dumps(ALL).replace("{0}", name))


def said(call, **more):
    def header(params, **_):
        params["headers"].update(more)
    s3 = client()
    s3.meta.events.register("before-call.s3", header)
    try:
        return f"{call(s3)['ResponseMetadata']['HTTPStatusCode']}"
    except ClientError as err:
        return f"{err.response['ResponseMetadata']['HTTPStatusCode']} {err.response['Error']['Code']}"


def probe(s3, name):
    def put(c):
        return c.put_object(Bucket=name, Key="probe", Body=b"bytes")
    put(s3)
    etag = s3.head_object(Bucket=name, Key="probe")["ETag"]
    upload = s3.create_multipart_upload(Bucket=name, Key="probe")["UploadId"]
    part = s3.upload_part(Bucket=name, Key="probe", UploadId=upload, PartNumber=1, Body=b"bytes")["ETag"]

    def complete(c):
        return c.complete_multipart_upload(Bucket=name, Key="probe", UploadId=upload,
                                           MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part}]})
    for what, answer in (
            ("PUT, If-None-Match: *, of what is there", said(put, **{"If-None-Match": "*"})),
            ("PUT, the right If-Match", said(put, **{"If-Match": etag})),
            ("PUT, a wrong x-amz-checksum-crc64nvme", said(put, **{"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="})),
            ("PUT, a wrong x-amz-checksum-crc32", said(put, **{"x-amz-checksum-crc32": "AAAAAA=="})),
            ("PUT, a wrong Content-MD5", said(put, **{"Content-MD5": "AAAAAAAAAAAAAAAAAAAAAA=="})),
            ("CompleteMultipartUpload, If-None-Match: *, of what is there", said(complete, **{"If-None-Match": "*"}))):
        print(f"{what}: {answer}", flush=True)


def main():
    word, name = sys.argv[1:]
    {"fresh": fresh, "drop": drop, "probe": probe}[word](client(), name)


if __name__ == "__main__":
    main()
