extends Node
## Lets a training server control every node in the group "agents", with the protocol of Godot RL Agents.
##
## Frames are a length (32 bits, least significant byte first) and JSON. The server asks, the game answers:
##   handshake            nothing
##   env_info             how many agents there are, and their spaces
##   reset                their first observations
##   action               moves the agents; then observations, rewards, and which episodes are done
##   close                the game quits
##
## When an episode is done, `obs` is the first observation of the next one. `info` has the last one of the former, and
## whether it was truncated, so that the server need not guess. If the server goes away, the game waits and connects
## again.

const HOST := "127.0.0.1"
const RETRY_SECONDS := 1.0

var _peer: StreamPeerTCP = null
var _agents: Array[Node] = []
var _repeat := 6 ## Physics frames for each action.
var _frames_left := 0 ## Of the current action.
var _port := 11008
var _next_try := 0


func _ready() -> void:
	for argument in OS.get_cmdline_args() + OS.get_cmdline_user_args():
		if argument.begins_with("--port="):
			_port = argument.get_slice("=", 1).to_int()
		elif argument.begins_with("--env_seed="):
			seed(argument.get_slice("=", 1).to_int())
	await get_parent().ready
	_agents = get_tree().get_nodes_in_group("agents")


func _physics_process(delta: float) -> void:
	if _agents.is_empty() or not _is_connected():
		return
	if _frames_left > 0:
		for agent in _agents:
			agent.advance(delta)
		_frames_left -= 1
		if _frames_left > 0:
			return
		_send(_outcome())
	while _frames_left == 0:
		var message := _receive()
		if message.is_empty() or not _handle(message):
			return


## Handle a message; returns whether to wait for another one at once.
func _handle(message: Dictionary) -> bool:
	match message["type"]:
		"handshake":
			return true
		"env_info":
			_send({
				"type": "env_info",
				"n_agents": _agents.size(),
				"observation_space": _agents.map(func(agent: Node) -> Dictionary: return agent.observation_space()),
				"action_space": _agents.map(func(agent: Node) -> Dictionary: return agent.action_space()),
				"agent_policy_names": _agents.map(func(_agent: Node) -> String: return "shared_policy"),
			})
			return true
		"reset":
			for agent in _agents:
				agent.start()
			_send({"type": "reset", "obs": _observations(), "info": _agents.map(func(_agent: Node) -> Dictionary: return {})})
			return true
		"action":
			for index in _agents.size():
				_agents[index].act(message["action"][index])
			_frames_left = _repeat
			return false
		"close":
			print("the training is over")
			get_tree().quit()
			return false
	push_error("unknown message: %s" % message["type"])
	return true


func _outcome() -> Dictionary:
	var rewards: Array[float] = []
	var dones: Array[bool] = []
	var infos: Array[Dictionary] = []
	for agent in _agents:
		rewards.append(agent.take_reward())
		var is_done: bool = agent.is_terminated() or agent.is_truncated()
		dones.append(is_done)
		if is_done:
			var info: Dictionary = agent.summary()
			info["TimeLimit.truncated"] = agent.is_truncated()
			info["terminal_observation"] = agent.observe()
			infos.append(info)
			agent.start()
		else:
			infos.append({})
	return {"type": "step", "obs": _observations(), "reward": rewards, "done": dones, "info": infos}


func _observations() -> Array:
	return _agents.map(func(agent: Node) -> Dictionary: return agent.observe())


## Whether there is a server; if not, try to connect from time to time.
func _is_connected() -> bool:
	if _peer != null:
		_peer.poll()
		if _peer.get_status() == StreamPeerTCP.STATUS_CONNECTED:
			return true
	if Time.get_ticks_msec() < _next_try:
		OS.delay_msec(10)
		return false
	_next_try = Time.get_ticks_msec() + int(1000 * RETRY_SECONDS)
	_frames_left = 0
	_peer = StreamPeerTCP.new()
	if _peer.connect_to_host(HOST, _port) == OK:
		while _peer.get_status() == StreamPeerTCP.STATUS_CONNECTING:
			OS.delay_msec(1)
			_peer.poll()
	var is_there := _peer.get_status() == StreamPeerTCP.STATUS_CONNECTED
	if is_there:
		_peer.set_no_delay(true)
	print("connected to port %d" % _port if is_there else "no server at port %d yet" % _port)
	return is_there


## The next message; empty if the server is gone.
func _receive() -> Dictionary:
	var header := _read(4)
	if header.is_empty():
		return {}
	var body := _read(header.decode_u32(0))
	if body.is_empty():
		return {}
	return JSON.parse_string(body.get_string_from_utf8())


## This many bytes, as soon as they are there; empty if the server is gone.
func _read(count: int) -> PackedByteArray:
	while _peer.get_available_bytes() < count:
		_peer.poll()
		if _peer.get_status() != StreamPeerTCP.STATUS_CONNECTED:
			print("the server is gone")
			return PackedByteArray()
		OS.delay_usec(20)
	return _peer.get_data(count)[1]


func _send(message: Dictionary) -> void:
	var text := JSON.stringify(message).to_utf8_buffer()
	_peer.put_u32(text.size())
	_peer.put_data(text)
