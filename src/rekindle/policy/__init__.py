"""A trained policy on its own: small, immutable, and run with numpy alone.

policy = rekindle.policy.load("policy.mpk")
action = policy.act(observation)
"""

from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer, Normaliser
from rekindle.policy.onnx_graph import save_onnx
from rekindle.policy.policy import NetworkPolicy, load, save

__all__ = ["ActionHead", "Encoding", "Layer", "NetworkPolicy", "Normaliser", "load", "save", "save_onnx"]
