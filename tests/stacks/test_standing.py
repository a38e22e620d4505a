"""A deployed stack is restored completely, without references to an earlier test's copy."""

import gc

import boto3

from tests.stacks.standing import usable

REGION = "us-east-1"


def test_what_one_test_deletes_the_next_finds_and_can_delete():
    for _ in range(3):
        with usable("aws-dev"):
            functions = boto3.client("lambda", REGION)
            found = [function["FunctionName"] for function in functions.list_functions()["Functions"]]
            gc.collect()
            for name in found:
                functions.delete_function(FunctionName=name)
            assert (len(found) > 1, functions.list_functions()["Functions"]) == (True, [])
