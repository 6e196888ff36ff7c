from hangup.cli.main import main

raise SystemExit(main())
