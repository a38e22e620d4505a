"""A program under the rehearsal's monitor: what it registers and what it gets back."""

import gc
import threading

import pulumi
import pulumi_aws as aws
from pulumi.runtime import resource

from gpu_fleet_stacks.rehearsal.program import read_config, run_program
from gpu_fleet_stacks.rehearsal.registrations import RegistrationOutcome
from tests.stacks.rehearsal.examples import run


def only(rehearsed, type_token):
    (found,) = rehearsed.of_type(type_token)
    return found


class Room(pulumi.ComponentResource):
    """A component with one topic in it."""

    def __init__(self, name, opts=None):
        super().__init__("gpu-fleet:test:Room", name, None, opts)
        self.topic = aws.sns.Topic(f"{name}-topic", opts=pulumi.ResourceOptions(parent=self))
        self.register_outputs({})


def test_a_program_gets_the_attributes_that_the_provider_computes_and_the_process_stays_as_it_was(clients):
    trace = resource._get_stack_trace

    def program():
        made = aws.sns.Topic("alarms")
        pulumi.export("arn", made.arn)
        pulumi.export("name", made.name)

    rehearsed = run(program)

    topics = [topic["TopicArn"] for topic in clients("sns").list_topics()["Topics"]]
    stem, _, suffix = rehearsed.outputs["name"].rpartition("-")
    assert topics == [rehearsed.outputs["arn"]]
    assert (stem, len(suffix)) == ("alarms", 7), "as Pulumi names"
    assert gc.isenabled()
    assert resource._get_stack_trace is trace
    assert [thread for thread in threading.enumerate() if thread.name.startswith("rehearsal")] == []


def test_a_programs_warning_is_printed_as_one_and_a_quiet_command_line_leaves_it_out(
    clients, capsys, monkeypatch
):
    said = []
    for quiet in ("", "1"):
        monkeypatch.setenv("GPU_FLEET_QUIET", quiet)
        run(lambda: pulumi.log.warn("prices are old"))
        said.append(capsys.readouterr().err)

    assert said == ["warning: prices are old\n", ""]


def test_inputs_and_options_are_seen_in_the_providers_own_names(clients):
    def program():
        lasting = pulumi.CustomTimeouts(delete="90s")
        options = {"protect": True, "retain_on_delete": True, "ignore_changes": ["display_name"]}
        aws.sns.Topic(
            "kept",
            display_name="Alarms",
            tags={"gpu-fleet:stack": "test"},
            opts=pulumi.ResourceOptions(custom_timeouts=lasting, **options),
        )
        aws.sqs.Queue("failed", message_retention_seconds=600)

    rehearsed = run(program)

    topic, queue = only(rehearsed, "aws:sns/topic:Topic"), only(rehearsed, "aws:sqs/queue:Queue")
    assert topic.inputs == {"displayName": "Alarms", "tags": {"gpu-fleet:stack": "test"}}
    assert (topic.protected, topic.retained, topic.delete_timeout) == (True, True, "90s")
    assert topic.ignored_changes == ("displayName",)
    assert str(queue.inputs["messageRetentionSeconds"]) == "600", "a whole number stays whole"


def test_components_are_grouped_know_their_children_count_as_nothing_made_and_a_listener_hears_of_each(
    clients,
):
    heard = []

    rehearsed = run(lambda: Room("hall"), listener=heard.append)

    room, topic = rehearsed.registrations
    assert heard == [room, topic]
    assert (room.outcome, topic.outcome) == (RegistrationOutcome.GROUPED, RegistrationOutcome.CREATED)
    assert topic.parent == room.urn
    assert topic.urn.endswith("::gpu-fleet:test:Room$aws:sns/topic:Topic::hall-topic")
    assert (rehearsed.created, rehearsed.recorded, len(rehearsed.resources)) == (1, 0, 1)


def test_a_resource_is_made_after_what_it_depends_on_by_option_or_by_output(clients):
    def program():
        first = aws.sns.Topic("z-first")
        second = aws.sns.Topic("m-second", opts=pulumi.ResourceOptions(depends_on=[first]))
        aws.sns.TopicPolicy("a-policy", arn=second.arn, policy='{"Statement": []}')

    first, second, policy = run(program).resources

    assert [made.name for made in (first, second, policy)] == ["z-first", "m-second", "a-policy"]
    assert (second.dependencies, policy.dependencies) == ((first.urn,), (second.urn,))


def test_a_resource_lands_in_the_region_of_its_provider(clients):
    def program():
        frankfurt = aws.Provider("frankfurt", region="eu-central-1")
        aws.sns.Topic("alarms", opts=pulumi.ResourceOptions(provider=frankfurt))

    topic = only(run(program), "aws:sns/topic:Topic")

    assert topic.outputs["arn"].startswith("arn:aws:sns:eu-central-1:")
    assert len(clients.at("eu-central-1")("sns").list_topics()["Topics"]) == 1


def test_a_resource_that_stands_elsewhere_is_recorded_with_its_id(clients):
    def program():
        pulumi.export("id", aws.sns.Topic.get("theirs", "arn:aws:sns:us-east-1:1:theirs").id)

    rehearsed = run(program)

    assert rehearsed.outputs == {"id": "arn:aws:sns:us-east-1:1:theirs"}
    assert (rehearsed.created, rehearsed.recorded) == (0, 1)


def test_a_secret_input_reaches_moto_and_makes_a_secret_output(clients):
    seen = {}

    async def look(parameter):
        seen["value"] = await parameter.value.is_secret()
        seen["arn"] = await parameter.arn.is_secret()

    def program():
        secret = pulumi.Output.secret("hunter2")
        parameter = aws.ssm.Parameter("token", name="/token", type="SecureString", value=secret)
        pulumi.export("looked", pulumi.Output.from_input(look(parameter)))

    run(program)

    stored = clients("ssm").get_parameter(Name="/token", WithDecryption=True)["Parameter"]["Value"]
    assert stored == "hunter2"
    assert seen == {"value": True, "arn": False}


def test_two_runs_in_one_process_know_nothing_of_each_other(clients):
    def first():
        pulumi.export("first", aws.sns.Topic("first").name)

    def second():
        pulumi.export("second", aws.sqs.Queue("second").name)

    run(first)
    rehearsed = run(second)

    assert [registration.name for registration in rehearsed.registrations] == ["second"]
    assert list(rehearsed.outputs) == ["second"]


def test_configuration_reaches_the_program(clients):
    def program():
        config = pulumi.Config("gpu-fleet")
        pulumi.export("pools", config.require_object("pools"))
        pulumi.export("stack", pulumi.get_stack())

    rehearsed = run_program("mine", program=program, config={"gpu-fleet:pools": '[{"name": "dev"}]'})

    assert rehearsed.outputs == {"pools": [{"name": "dev"}], "stack": "mine"}


def test_structures_of_a_stack_file_become_json(tmp_path):
    path = tmp_path / "Pulumi.mine.yaml"
    path.write_text("config:\n  gpu-fleet:pools: [{name: dev}]\n  aws:region: us-east-1\n")

    assert read_config("mine", path) == {
        "gpu-fleet:pools": '[{"name": "dev"}]',
        "aws:region": "us-east-1",
    }
