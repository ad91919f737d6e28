extends Node2D
## Lays out one arena for each bot.

const Bot := preload("res://bot.gd")
const BOTS := 12
const COLUMNS := 4
const GAP := 20.0


func _ready() -> void:
	var bots := BOTS
	for argument in OS.get_cmdline_args() + OS.get_cmdline_user_args():
		if argument.begins_with("--bots="):
			bots = argument.get_slice("=", 1).to_int()
	for index in bots:
		var bot := Bot.new()
		var place := Vector2(index % COLUMNS, index / COLUMNS)
		bot.position = Vector2.ONE * GAP / 2 + place * (Bot.SIZE + GAP)
		bot.add_to_group("agents")
		add_child(bot)
