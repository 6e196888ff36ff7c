"""Several hosts, one set of books: gateways share slots and quotas through Redis or Valkey (`shared_state`).

    gateway A ── snapshot: what I hold ──▶ store ◀── snapshot ── gateway B
              ◀── orders: what you may use ──┘ ▲
                                               └── A leads: it reads all snapshots, and writes the orders

Each gateway writes its snapshot many times a second. One of them leads: it runs the hub (`gateway/members/hub.py`) over all
snapshots and writes orders to each gateway, itself included. The store refuses the orders of a leader that was replaced. No
call waits for the store, nobody's clock is compared with another's, and without the store all keep what they hold.

- `store` has the commands for the server, and says in one line what is wrong with it.
- `link` is this gateway's part: it writes snapshots, obeys orders, and takes the lead when nobody has it.
- `leading` is what the leader does besides: it also judges the engines for all (`gateway/members/stop_hub.py`).
- `lines` carry the messages about ended calls between members and the leader, and notice if one is lost; `mail` sends them.
- `life` tells a gateway that died from one that is cut off from the store: it asks the gateway itself.
- `admin` answers operators for all gateways; `questions` asks the others.
- `server` is the process.
"""
