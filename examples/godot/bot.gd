extends Node2D
## One bot in an arena of its own. It steers and picks a gear, and has to reach the flag without touching a wall.

const SIZE := 200.0
const RADIUS := 8.0
const MAX_STEPS := 100 ## Decisions until the episode is cut short.
const TURN := 6.0 ## Radians a second at full steering.
const SPEEDS := [0.0, 90.0, 180.0] ## Pixels a second in each gear.

var _place := Vector2.ZERO
var _heading := 0.0
var _flag := Vector2.ZERO
var _steering := 0.0
var _gear := 0
var _reward := 0.0
var _steps := 0
var _is_over := false
var _flags_reached := 0


func observation_space() -> Dictionary:
	return {"obs": {"size": [7], "space": "box"}}


func action_space() -> Dictionary:
	return {
		"steer": {"size": 1, "action_type": "continuous"},
		"gear": {"size": SPEEDS.size(), "action_type": "discrete"},
	}


## Begin an episode.
func start() -> void:
	_place = _anywhere()
	_heading = randf_range(-PI, PI)
	_flag = _anywhere()
	_steering = 0.0
	_gear = 0
	_reward = 0.0
	_steps = 0
	_is_over = false
	_flags_reached = 0
	queue_redraw()


func observe() -> Dictionary:
	var to_flag := (_flag - _place).rotated(-_heading) / SIZE
	var ahead := Vector2.from_angle(_heading)
	return {
		"obs": [
			to_flag.x,
			to_flag.y,
			2.0 * _place.x / SIZE - 1.0,
			2.0 * _place.y / SIZE - 1.0,
			ahead.x,
			ahead.y,
			to_flag.length(),
		]
	}


func act(action: Dictionary) -> void:
	_steering = clampf(float(action["steer"][0]), -1.0, 1.0)
	_gear = int(action["gear"])
	_steps += 1


## Move by one physics frame, unless the episode is over.
func advance(delta: float) -> void:
	if _is_over:
		return
	var before := _place.distance_to(_flag)
	_heading = wrapf(_heading + _steering * TURN * delta, -PI, PI)
	_place += Vector2.from_angle(_heading) * SPEEDS[_gear] * delta
	_reward += (before - _place.distance_to(_flag)) / SIZE - 0.002
	if _place.distance_to(_flag) < 2.0 * RADIUS:
		_reward += 1.0
		_flags_reached += 1
		_flag = _anywhere()
	var inside := Rect2(0, 0, SIZE, SIZE).grow(-RADIUS)
	if not inside.has_point(_place):
		_reward -= 1.0
		_is_over = true
	queue_redraw()


## The reward since the last call.
func take_reward() -> float:
	var reward := _reward
	_reward = 0.0
	return reward


func is_terminated() -> bool:
	return _is_over


func is_truncated() -> bool:
	return not _is_over and _steps >= MAX_STEPS


## Numbers for the log of an episode that ends.
func summary() -> Dictionary:
	return {"flags": _flags_reached}


func _anywhere() -> Vector2:
	var margin := 3.0 * RADIUS
	return Vector2(randf_range(margin, SIZE - margin), randf_range(margin, SIZE - margin))


func _draw() -> void:
	draw_rect(Rect2(0, 0, SIZE, SIZE), Color(0.14, 0.16, 0.2))
	draw_rect(Rect2(0, 0, SIZE, SIZE), Color(0.35, 0.38, 0.45), false, 2.0)
	draw_circle(_flag, RADIUS, Color(0.98, 0.75, 0.2))
	draw_circle(_place, RADIUS, Color(0.35, 0.75, 1.0))
	draw_line(_place, _place + 2.0 * RADIUS * Vector2.from_angle(_heading), Color.WHITE, 2.0)
