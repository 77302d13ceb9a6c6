"""What to tell the user of a model that cannot be used: who, what it said, and the way out."""

from __future__ import annotations

from judgebench.engine.faults import Fault, refused_setting, refuses_system
from judgebench.request import Connection, Request, endpoint_of


def way_out(request: Request, fault: Fault) -> str | None:
    """What to change where the model refuses something that all of its requests have; else null."""
    if fault.reason not in ("bad_request", "no_logprobs", "server"):
        return None
    setting = refused_setting(fault.detail, request.descriptor.settings)
    if setting == "logprobs":
        return None  # not the model's setting but the protocol's: the way out is told of a reply without them
    if setting is not None:
        return (
            f"It does not take the setting {setting}: set sampling.{setting}=null in its conf or here "
            f"(judge.sampling.{setting}=null, candidate.sampling.{setting}=null). That is another request, "
            "with a key of its own."
        )
    if refuses_system(fault.detail) and '"role":"system"' in request.input_text:
        return (
            "Its chat template has no system message: fold_system=true (judge.fold_system=true, "
            "candidate.fold_system=true) puts that text before the first user turn."
        )
    return None


def named(request: Request, connection: Connection) -> str:
    """Provider, model and address."""
    descriptor = request.descriptor
    place = endpoint_of(connection.base_url, None)
    return f"{descriptor.provider}/{descriptor.model}" + (f" at {place}" if place else "")


def reproach(connection: Connection, fault: Fault) -> str:
    """What is wrong with a deployment, and with which variable's key."""
    key = f", key in {connection.api_key_env}" if connection.api_key_env else ""
    return f"{fault.reason}, {fault.detail.rstrip('.')}{key}."


def advice(request: Request, connection: Connection, fault: Fault) -> str:
    """One paragraph: who, what it said, and the way out."""
    variable = connection.api_key_env
    if fault.down:
        way = "Start the server or set the model's base_url (and a proxy, where one is needed)."
    elif fault.reason == "auth":
        way = (
            f"Check the key in the environment variable {variable}, and what it is allowed to use."
            if variable
            else "No key was sent: name the environment variable that holds it in the model's api_key_env."
        )
    elif fault.reason == "quota":
        way = "Top up the account and run again: every stored answer is kept."
    elif fault.reason == "no_logprobs":
        way = "Take a judge that does, or a protocol that reads the text: protocol=pairwise."
    else:
        way = "Check the model's name and base_url; GET {base_url}/models lists what is served."
    return f"{named(request, connection)} cannot be used ({fault.reason}): {fault.detail.rstrip('.')}. {way}"
