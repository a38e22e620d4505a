from stacks import main

main()
